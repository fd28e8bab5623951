"""Records of one attempt in one batch become one entry."""

from runlane.domain.run import Status
from runlane.store.queue.commit_members import merge_entries
from runlane.store.queue.record import AttemptOutcome, Finish, RecordEntry


def test_progress_behind_an_end_does_not_lose_the_ordering_key() -> None:
    # Without the key its lock is not taken, and a run accepted at that moment would be blocked forever.
    end = RecordEntry("run", 1, "lane", ordering_key="key", finish=Finish(AttemptOutcome.COMPLETED, Status.COMPLETED))
    (merged,), late = merge_entries([end, RecordEntry("run", 1, "lane", progress=1.0)])
    assert merged.finish is not None
    assert merged.ordering_key == "key"
    assert len(late) == 1
