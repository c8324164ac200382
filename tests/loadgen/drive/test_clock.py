import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.drive.clock import Exchange, offset_of

NS = st.integers(0, 10_000_000)


@given(offset=st.integers(-(10**15), 10**15), there=NS, inside=NS, back=NS, asked=st.integers(0, 10**15))
def test_the_true_offset_lies_within_the_bound(offset, there, inside, back, asked):
    """Whatever each way took."""
    taken = asked + there + offset
    exchange = Exchange(asked_ns=asked, taken_ns=taken, told_ns=taken + inside, heard_ns=asked + there + inside + back)
    assert abs(exchange.offset_ns - offset) <= exchange.bound_ns + 1
    assert exchange.bound_ns == (there + back + 1) // 2


def test_the_quickest_exchange_decides():
    """The other clock is 1,000 ahead; the first question was held up on its way."""
    slow = Exchange(asked_ns=0, taken_ns=1_500, told_ns=1_500, heard_ns=510)
    quick = Exchange(asked_ns=1_000, taken_ns=2_010, told_ns=2_012, heard_ns=1_022)
    found = offset_of([slow, quick])
    assert (found.offset_ns, found.bound_ns, found.exchanges) == (1_000, 10, 2)


def test_no_exchange_no_clock():
    with pytest.raises(ValueError, match="empty"):
        offset_of([])
