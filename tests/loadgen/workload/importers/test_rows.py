import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.importers.rows import BadRow, Columns, LeftOut, Row, each, tokens

ROWS = st.lists(
    st.builds(
        Row,
        st.integers(0, 10**15),
        st.just(0),
        st.integers(0, 1000),
        st.sampled_from([None, "a", "b"]),
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 512)), max_size=5).map(tuple),
    ).map(lambda row: row._replace(prompt_tokens=sum(length for _, length in row.segments))),
    min_size=1,
    max_size=30,
)


@given(ROWS)
def test_columns_are_the_rows_in_order_of_time(given_rows):
    columns = Columns()
    columns.extend(given_rows)
    requests = columns.requests()
    expected = sorted(given_rows, key=lambda row: row.at_ns)
    assert requests.prompt_tokens.tolist() == [row.prompt_tokens for row in expected]
    assert requests.output_tokens.tolist() == [row.output_tokens for row in expected]
    for number, row in enumerate(expected):
        begin, end = requests.segment_offsets[number : number + 2]
        pairs = zip(requests.segment_ids[begin:end].tolist(), requests.segment_tokens[begin:end].tolist(), strict=True)
        assert tuple(pairs) == (row.segments or ((-1, row.prompt_tokens),))
    names = {row.session for row in expected} - {None}
    assert len(set(requests.session.tolist()) - {-1}) == len(names)
    assert [number == -1 for number in requests.session] == [row.session is None for row in expected]


@pytest.mark.parametrize("value", [5, "5", 0, "0"])
def test_a_count_may_be_a_number_or_text(value):
    assert tokens(value, "n", "here") == int(value)


@pytest.mark.parametrize("value", [-1, "-1", 1.5, "1.5", "²", "", None, True, 2**31, "9" * 5000])
def test_anything_else_is_named(value):
    with pytest.raises(BadRow, match=r"here: n .*: expected a count of tokens"):
        tokens(value, "n", "here")


def test_what_cannot_be_read_is_given_as_its_error_and_the_rest_goes_on():
    def read(raw, place):
        if raw < 0:
            raise BadRow(f"{place}: {raw}")
        yield Row(raw, 1, 1)

    found = list(each([("a", 1), ("b", -1), ("c", 2)], read))
    assert [str(one) if isinstance(one, BadRow) else one.at_ns for one in found] == [1, "b: -1", 2]


def test_reasons_are_counted():
    columns = Columns()
    columns.extend([LeftOut("x"), LeftOut("y"), LeftOut("x"), Row(0, 1, 1)])
    columns.check()
    assert columns.left_out == {"x": 2, "y": 1}
    assert len(columns) == 1


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_of_bad_rows_is_one(share):
    with pytest.raises(ValueError, match=f"a share of {share:g} bad rows: give one from 0 to below 1"):
        Columns(share)


def test_no_rows_are_no_requests():
    assert len(Columns().requests()) == 0
