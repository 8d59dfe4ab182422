"""Figures of jobs that work together, of waits and ledgers whose shares are known."""

from tests.analysis.communication.test_workflow import run, steps
from traincope.analysis.communication.workflow import JobWait, workflow
from traincope.figures.run.job_ledgers import job_ledgers
from traincope.figures.run.job_waits import REST, UNKNOWN, WAITED, WORKED, job_waits


def test_a_wait_is_divided_by_what_the_awaited_job_did() -> None:
    """70 % of the actor's time: the trainer recorded 90 % of it, works in 70 % and waits in 10 %.

    Nothing is known of the critic.
    """
    known = JobWait(
        waiting="actor", awaited="trainer", ns=70, ratio=0.7, recorded_ratio=0.9, worked_ratio=0.7, waited_ratio=0.1
    )
    unknown = JobWait(
        waiting="actor", awaited="critic", ns=20, ratio=0.2, recorded_ratio=0.0, worked_ratio=None, waited_ratio=None
    )
    figure = job_waits([known, unknown])
    shares = {trace.name: [None if x is None else round(x, 9) for x in trace.x] for trace in figure.data}
    assert shares == {
        WORKED: [0.49, None],
        WAITED: [0.07, None],
        REST: [0.07, None],
        UNKNOWN: [0.07, 0.2],
    }
    assert list(figure.layout.yaxis.ticktext) == ["actor for trainer", "actor for critic"]


def test_a_jobs_waits_are_parts_of_its_ledger() -> None:
    """Of 100 ns per step, the trainer waits 30 for the actor and 10 for the reward model, and the actor 70 for it."""
    trainer = run("trainer", steps(("actor", 30), ("reward <b>", 10), ("forward", 60)))
    actor = run("actor", steps(("trainer", 70), ("forward", 30)))
    figure = job_ledgers({"trainer": trainer.ledger, "actor": actor.ledger}, workflow([trainer, actor]))
    shares = {trace.name: list(trace.x) for trace in figure.data}
    assert shares["wait for trainer"] == [None, 0.7]
    assert shares["wait for actor"] == [0.3, None]
    assert shares["wait for reward &lt;b&gt;"] == [0.1, None]
    assert shares["forward"] == [0.6, 0.3]
    for row in range(2):
        assert round(sum(values[row] or 0.0 for values in shares.values()), 9) == 1.0
