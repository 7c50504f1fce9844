import gc

import pytest

from autoddl.planner.options import paused_collector


def test_no_collection_happens_inside_and_the_state_comes_back():
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_does_not_leave_it_off():
    with pytest.raises(ValueError), paused_collector():
        raise ValueError
    assert gc.isenabled()
