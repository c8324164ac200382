from loadgen.drive.share import shares_of


def test_a_limit_is_divided_as_evenly_as_it_goes():
    assert shares_of(10, 3) == [4, 3, 3]
    assert shares_of(2, 2) == [1, 1]
    assert shares_of(None, 2) == [None, None]
