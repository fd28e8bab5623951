"""What an attempt said in one batch becomes one entry."""

from runlane.model.run import Status
from runlane.store.committer import _merged
from runlane.store.record import Entry, Finish, Outcome


def test_progress_behind_an_end_does_not_lose_the_ordering_key() -> None:
    # Without the key its lock is not taken, and a run accepted at that moment would be blocked for ever.
    end = Entry("run", 1, "lane", ordering_key="key", finish=Finish(Outcome.COMPLETED, Status.COMPLETED))
    (merged,), late = _merged([end, Entry("run", 1, "lane", progress=1.0)])
    assert merged.finish is not None
    assert merged.ordering_key == "key"
    assert len(late) == 1
