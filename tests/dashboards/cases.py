"""Test cases of every alert: a few minutes of series in which it fires, and some in which it must not.

Series use promtool's notation: "a+bxn" is a, a+b, ... for n further minutes, "_" is no sample. The expected texts were
computed by hand.
"""

from dataclasses import dataclass

Series = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    alert: str
    series: Series
    minute: int
    """Minute of the evaluation; the series have one sample per minute."""
    labels: dict[str, str] | None = None
    """Labels of the only firing alert; None if no alert fires."""
    summary: str = ""
    description: str = ""


RUN = 'run="r"'
HOST = 'run="r",host="h"'


def rank(number: int, *, host: str = "h") -> str:
    return f'run="r",host="{host}",rank="{number}"'


def fault(kind: str, values: str) -> Series:
    return {f'traincope_faults_total{{{rank(3)},kind="{kind}"}}': values}


ALIVE = {f'traincope_ranks{{{HOST},state="alive"}}': "2x100"}
FAST_STEPS = {f"traincope_step_duration_seconds{{{rank(0)}}}": "2x100"}
SILENT = {f"traincope_data_age_seconds{{{rank(0)}}}": "10x2 200+60x20"}
SILENT_TOO = {f"traincope_data_age_seconds{{{rank(1)}}}": "10x2 230+60x20"}
TALKING = {f"traincope_data_age_seconds{{{rank(1)}}}": "5x100"}
WALL_A, WALL_B = (f"traincope_step_wall_seconds_total{{{rank(n, host=host)}}}" for n, host in ((0, "a"), (1, "b")))


def exposed(number: int, host: str, values: str) -> Series:
    return {f'traincope_ledger_seconds_total{{{rank(number, host=host)},term="exposed_wait",axis="fsdp"}}': values}


STANDS_STILL = (
    "r stands still: an agent found a hang, or all ranks have written no record for 180 s and for three steps, while "
    "their processes are alive."
)
LIVENESS = (
    # The agent of one host has the verdict; the culprit may be unknown.
    Case(
        alert="Hang",
        series={f'traincope_faults_total{{{HOST},rank="",kind="hang"}}': "_x4 1x100", **FAST_STEPS},
        minute=5,
        labels={"run": "r", "severity": "critical"},
        summary="r hangs",
        description=STANDS_STILL,
    ),
    # Rank 1 records again.
    Case(
        alert="Hang",
        series={
            f'traincope_faults_total{{{HOST},rank="",kind="hang"}}': "_x4 1x100",
            **SILENT,
            f"traincope_data_age_seconds{{{rank(1)}}}": "10x5 1x100",
        },
        minute=7,
    ),
    Case(alert="Hang", series=fault("mismatch", "_x4 1x100"), minute=5),
    # 200 s at minute 3, more than 180 s and than 3 steps of 2 s.
    Case(
        alert="Hang",
        series={**SILENT, **SILENT_TOO, **ALIVE, **FAST_STEPS},
        minute=4,
        labels={"run": "r", "severity": "critical"},
        summary="r hangs",
        description=STANDS_STILL,
    ),
    # It also hangs before its first step.
    Case(
        alert="Hang",
        series={**SILENT, **SILENT_TOO, **ALIVE},
        minute=4,
        labels={"run": "r", "severity": "critical"},
        summary="r hangs",
        description=STANDS_STILL,
    ),
    # Three steps of 100 s are longer than 260 s.
    Case(
        alert="Hang",
        series={**SILENT, **SILENT_TOO, **ALIVE, f"traincope_step_duration_seconds{{{rank(0)}}}": "100x100"},
        minute=4,
    ),
    Case(alert="Hang", series={**SILENT, **TALKING, **ALIVE, **FAST_STEPS}, minute=10),
    Case(
        alert="Hang",
        series={**SILENT, **SILENT_TOO, f'traincope_ranks{{{HOST},state="gone"}}': "2x100", **FAST_STEPS},
        minute=10,
    ),
    Case(
        alert="HangCulprit",
        series=fault("hang", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "kind": "hang", "severity": "critical"},
        summary="rank 3 of r is the culprit of a hang",
        description="Ranks of r wait for rank 3, or issue other collectives than it does, as the agent of h found.",
    ),
    # The culprit is unknown.
    Case(
        alert="HangCulprit",
        series={f'traincope_faults_total{{{HOST},rank="",kind="hang"}}': "_x4 1x100"},
        minute=6,
    ),
    Case(
        alert="LostHost",
        series=fault("lost_host", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "kind": "lost_host", "severity": "critical"},
        summary="a host of r was lost",
        description="Ranks of r wait for a host that no longer answers the agent of h.",
    ),
    Case(alert="LostHost", series=fault("hang", "_x4 1x100"), minute=6),
    Case(
        alert="RankStale",
        series={**SILENT, **TALKING, **ALIVE, **FAST_STEPS},
        minute=4,
        labels={"run": "r", "host": "h", "rank": "0", "severity": "warning"},
        summary="rank 0 of r is silent",
        description="Rank 0 on h has written no record for 4m 20s, while other ranks of r continue.",
    ),
    Case(alert="RankStale", series={**SILENT, **SILENT_TOO, **ALIVE, **FAST_STEPS}, minute=10),
    Case(
        alert="RankGone",
        series={f'traincope_ranks{{{HOST},state="gone"}}': "0x1 2x100"},
        minute=3,
        labels={"run": "r", "host": "h", "severity": "critical"},
        summary="ranks of r are gone",
        description="2 processes of r on h are gone without a recorded end.",
    ),
    Case(alert="RankGone", series={f'traincope_ranks{{{HOST},state="ended"}}': "2x100"}, minute=10),
    # The series begins with the exception.
    Case(
        alert="RankFailed",
        series=fault("exception", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "kind": "exception", "severity": "critical"},
        summary="rank 3 of r failed: exception",
        description="Rank 3 of r on h ended with exception.",
    ),
    # After 15 minutes the event is over.
    Case(alert="RankFailed", series=fault("exception", "_x4 1x100"), minute=21),
    Case(alert="RankFailed", series=fault("slow_step", "_x4 1x100"), minute=6),
    Case(alert="RankFailed", series=fault("no_end", "_x4 1x100"), minute=6),
)

JOB = (
    Case(
        alert="NotFinite",
        series=fault("not_finite", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "severity": "critical"},
        summary="r logged NaN or infinity",
        description="Rank 3 of r on h logged a value that is not finite.",
    ),
    # One more event in an old series.
    Case(
        alert="NotFinite",
        series=fault("not_finite", "1x30 2x100"),
        minute=32,
        labels={"run": "r", "host": "h", "rank": "3", "severity": "critical"},
        summary="r logged NaN or infinity",
        description="Rank 3 of r on h logged a value that is not finite.",
    ),
    Case(alert="NotFinite", series=fault("not_finite", "1x100"), minute=32),
    Case(
        alert="Spike",
        series=fault("spike", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "severity": "warning"},
        summary="a logged value of r spiked",
        description="Rank 3 of r on h logged a value far above its earlier values.",
    ),
    Case(alert="Spike", series=fault("not_finite", "_x4 1x100"), minute=6),
    Case(
        alert="BadState",
        series=fault("corrupted_state", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "kind": "corrupted_state", "severity": "critical"},
        summary="the state of r is bad: corrupted_state",
        description="Parameters or optimizer state of rank 3 of r on h are not what they must be: corrupted_state.",
    ),
    Case(alert="BadState", series=fault("restart", "_x4 1x100"), minute=6),
    Case(
        alert="DataOrder",
        series=fault("data_fed_again", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "kind": "data_fed_again", "severity": "critical"},
        summary="r continued with the wrong data: data_fed_again",
        description=(
            "After a restart, rank 3 of r on h did not continue with the batch that follows its state: data_fed_again."
        ),
    ),
    Case(alert="DataOrder", series=fault("restart", "_x4 1x100"), minute=6),
    Case(
        alert="CheckpointFailed",
        series=fault("checkpoint_failed", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "severity": "critical"},
        summary="a checkpoint of r failed",
        description="Rank 3 of r on h could not complete a checkpoint.",
    ),
    Case(alert="CheckpointFailed", series=fault("checkpoint", "_x4 1x100"), minute=6),
    # Above 7200 s from minute 4 on, so it fires at minute 9, at 7000 + 9 * 60 s.
    Case(
        alert="CheckpointOverdue",
        series={f"traincope_checkpoint_age_seconds{{{HOST}}}": "7000+60x100", **ALIVE},
        minute=9,
        labels={"run": "r", "severity": "warning"},
        summary="r has not saved a checkpoint for 2h 5m 40s",
        description="The last checkpoint of r is 2h 5m 40s old: a crash now would lose that much time.",
    ),
    Case(
        alert="CheckpointOverdue",
        series={f"traincope_checkpoint_age_seconds{{{HOST}}}": "7000+60x100", **ALIVE},
        minute=8,
    ),
    # Another host has saved.
    Case(
        alert="CheckpointOverdue",
        series={
            f"traincope_checkpoint_age_seconds{{{HOST}}}": "7000+60x100",
            'traincope_checkpoint_age_seconds{run="r",host="g"}': "100x100",
            **ALIVE,
        },
        minute=9,
    ),
    Case(
        alert="GoodputLow",
        series={
            f"traincope_goodput_ratio{{{HOST}}}": "0.5x100",
            f'traincope_job_time_seconds{{{HOST},part="productive"}}': "2000x100",
            f'traincope_job_time_seconds{{{HOST},part="restart"}}': "2000x100",
        },
        minute=17,
        labels={"run": "r", "severity": "warning"},
        summary="goodput of r is 50%",
        description="Only 50% of the time of r was productive; startup, restarts, lost steps and checkpoints"
        " took the rest.",
    ),
    # In the first hour startup alone makes goodput low.
    Case(
        alert="GoodputLow",
        series={
            f"traincope_goodput_ratio{{{HOST}}}": "0.5x100",
            f'traincope_job_time_seconds{{{HOST},part="startup"}}': "2000x100",
        },
        minute=17,
    ),
)

GPU = f'{rank(3)},gpu="0"'
OF_GPU = {"run": "r", "host": "h", "gpu": "0"}
HARDWARE = (
    Case(
        alert="GpuXid",
        series={f'traincope_gpu_xid_errors_total{{{GPU},xid="79"}}': "_x4 1x100"},
        minute=6,
        labels={**OF_GPU, "xid": "79", "severity": "critical"},
        summary="XID 79 on h GPU 0",
        description="The driver reported XID 79 for GPU 0 of h, which trains r.",
    ),
    Case(alert="GpuXid", series={f'traincope_gpu_xid_errors_total{{{GPU},xid="79"}}': "1x100"}, minute=20),
    Case(
        alert="GpuEcc",
        series={f'traincope_gpu_ecc_errors_total{{{GPU},kind="uncorrected"}}': "3x4 4x100"},
        minute=6,
        labels={**OF_GPU, "severity": "critical"},
        summary="uncorrected ECC error on h GPU 0",
        description="GPU 0 of h, which trains r, had a memory error that could not be corrected.",
    ),
    # Errors from before the job, and corrected ones.
    Case(
        alert="GpuEcc",
        series={
            f'traincope_gpu_ecc_errors_total{{{GPU},kind="uncorrected"}}': "3x100",
            f'traincope_gpu_ecc_errors_total{{{GPU},kind="corrected"}}': "3x4 400x100",
        },
        minute=6,
    ),
    Case(
        alert="GpuFault",
        series=fault("gpu_lost", "_x4 1x100"),
        minute=6,
        labels={"run": "r", "host": "h", "rank": "3", "kind": "gpu_lost", "severity": "critical"},
        summary="gpu_lost on h",
        description="The GPU of rank 3 of r on h is faulty: gpu_lost.",
    ),
    Case(alert="GpuFault", series=fault("ecc_corrected", "_x4 1x100"), minute=6),
    Case(
        alert="GpuThrottled",
        series={f'traincope_gpu_throttled{{{GPU},reason="hardware thermal slowdown"}}': "0 1x100"},
        minute=6,
        labels={**OF_GPU, "reason": "hardware thermal slowdown", "severity": "warning"},
        summary="h GPU 0 is throttled: hardware thermal slowdown",
        description="GPU 0 of h is slowed down by hardware thermal slowdown; all ranks of r wait for it.",
    ),
    Case(
        alert="GpuThrottled",
        series={f'traincope_gpu_throttled{{{GPU},reason="software power cap"}}': "1x100"},
        minute=20,
    ),
    Case(
        alert="GpuNvlink",
        series={f"traincope_gpu_nvlink_errors_total{{{GPU}}}": "2x4 9x100"},
        minute=6,
        labels={**OF_GPU, "severity": "warning"},
        summary="NVLink errors on h GPU 0",
        description="NVLinks of GPU 0 of h, which trains r, had errors recently.",
    ),
    Case(alert="GpuNvlink", series={f"traincope_gpu_nvlink_errors_total{{{GPU}}}": "2x100"}, minute=6),
    Case(
        alert="LinkErrors",
        series={
            f'traincope_link_errors_total{{{HOST},port="TCP",kind="retransmitted segments"}}': "_x4 5000x100",
            f'traincope_link_traffic_bytes_total{{{HOST},port="eth0",direction="sent"}}': "0+100000000x100",
        },
        minute=6,
        labels={"run": "r", "host": "h", "port": "TCP", "kind": "retransmitted segments", "severity": "warning"},
        summary="h TCP: many retransmitted segments",
        description="Link TCP of h, which trains r, recently counted 5k of retransmitted segments: collectives of all "
        "ranks may wait for it.",
    ),
    Case(
        alert="LinkErrors",  # 0.5 % of 12 GB in packets of 1,500 bytes are 40,000
        series={
            f'traincope_link_errors_total{{{HOST},port="TCP",kind="retransmitted segments"}}': "_x4 5000x100",
            f'traincope_link_traffic_bytes_total{{{HOST},port="eth0",direction="sent"}}': "0+2000000000x100",
        },
        minute=6,
    ),
    Case(
        alert="LinkErrors",
        series={f'traincope_link_errors_total{{{HOST},port="TCP",kind="retransmitted segments"}}': "_x4 50x100"},
        minute=6,
    ),
    Case(
        alert="LinkDown",
        series={f'traincope_link_errors_total{{{HOST},port="mlx5_0/1",kind="link_downed"}}': "_x4 1x100"},
        minute=6,
        labels={"run": "r", "host": "h", "port": "mlx5_0/1", "severity": "critical"},
        summary="h mlx5_0/1 lost its link",
        description="Port mlx5_0/1 of h, which trains r, lost its link.",
    ),
    Case(alert="LinkDown", series={f'traincope_link_up{{{HOST},port="mlx5_0/1"}}': "1x100"}, minute=6),
    Case(
        alert="SlotNarrow",
        series={f'traincope_slot_width_ratio{{{HOST},port="0000:1a:00.0",holds="mlx5_0"}}': "0.5x100"},
        minute=6,
        labels={"run": "r", "host": "h", "port": "0000:1a:00.0", "holds": "mlx5_0", "severity": "warning"},
        summary="h mlx5_0 runs with too few PCIe lanes",
        description="The card with mlx5_0 in slot 0000:1a:00.0 of h has 50% of its lanes: its transfers for r are "
        "slow.",
    ),
    Case(
        alert="SlotNarrow",
        series={f'traincope_slot_width_ratio{{{HOST},port="0000:1a:00.0",holds="mlx5_0"}}': "1x100"},
        minute=6,
    ),
)

FOUR_RANKS = {f"traincope_step_duration_seconds{{{rank(number)}}}": "30x100" for number in range(4)}
SPEED = (
    # The three others wait 18 s per minute for rank 2: 0.3 / 3 of each one's time; for all others together a thirtieth.
    Case(
        alert="Straggler",
        series={
            **FOUR_RANKS,
            f"traincope_straggler_wait_seconds_total{{{rank(2)}}}": "0+18x100",
            f"traincope_straggler_wait_seconds_total{{{rank(0)}}}": "0+0.6x100",
        },
        minute=12,
        labels={"run": "r", "host": "h", "rank": "2", "severity": "warning"},
        summary="rank 2 holds up r",
        description="Each other rank on h waits 10% of its time because rank 2 of r joins collectives last.",
    ),
    # All ranks wait for all others.
    Case(
        alert="Straggler",
        series={
            **FOUR_RANKS,
            **{f"traincope_straggler_wait_seconds_total{{{rank(number)}}}": "0+18x100" for number in range(4)},
        },
        minute=15,
    ),
    # Only this rank, but a small share: 6 s per minute are 0.1 / 3.
    Case(
        alert="Straggler",
        series={**FOUR_RANKS, f"traincope_straggler_wait_seconds_total{{{rank(2)}}}": "0+6x100"},
        minute=15,
    ),
    # Host a stalls 24 s of 60, host b 6 s: 40 % and 10 %, their mean is 25 %.
    Case(
        alert="SlowHost",
        series={
            WALL_A: "0+60x100",
            WALL_B: "0+60x100",
            **exposed(0, "a", "0+24x100"),
            **exposed(1, "b", "0+6x100"),
        },
        minute=17,
        labels={"run": "r", "host": "b", "severity": "warning"},
        summary="b holds up r",
        description="Ranks on b stall 15% of step time less than the mean of r: the others wait for them.",
    ),
    Case(
        alert="SlowHost",
        series={
            WALL_A: "0+60x100",
            WALL_B: "0+60x100",
            **exposed(0, "a", "0+24x100"),
            **exposed(1, "b", "0+18x100"),
        },
        minute=15,
    ),
    Case(
        alert="MfuDrop",
        series={f"traincope_mfu_ratio{{{HOST}}}": "0.5x25 0.4x30"},
        minute=38,
        labels={"run": "r", "severity": "warning"},
        summary="MFU of r fell by 20%",
        description="MFU of r is 20% below its usual value; it is now 40%.",
    ),
    Case(alert="MfuDrop", series={f"traincope_mfu_ratio{{{HOST}}}": "0.5x25 0.46x30"}, minute=38),
    # It must last for ten minutes.
    Case(alert="MfuDrop", series={f"traincope_mfu_ratio{{{HOST}}}": "0.5x25 0.4x30"}, minute=31),
    # 6 s of 60 for half an hour, then 12 s.
    Case(
        alert="ExposedCommunicationUp",
        series={WALL_A: "0+60x100", **exposed(0, "a", "0+6x30 192+12x30")},
        minute=48,
        labels={"run": "r", "axis": "fsdp", "severity": "warning"},
        summary="communication on fsdp holds up r more than usual",
        description="Exposed communication on axis fsdp of r takes 10% more of step time than usual.",
    ),
    Case(
        alert="ExposedCommunicationUp",
        series={WALL_A: "0+60x100", **exposed(0, "a", "0+6x30 188+8x30")},
        minute=48,
    ),
    # 0.3 on average, more than 1.25 * 0.2 + 0.02.
    Case(
        alert="BubbleOverPlan",
        series={
            f'traincope_bubble_ratio{{{HOST},stage="0"}}': "0.4x100",
            f'traincope_bubble_ratio{{{HOST},stage="1"}}': "0.2x100",
            f"traincope_bubble_theory_ratio{{{HOST}}}": "0.2x100",
        },
        minute=12,
        labels={"run": "r", "severity": "warning"},
        summary="the pipeline of r idles more than planned",
        description="Stages of r idle 30% of step time; the schedule's theoretical bubble is 20%.",
    ),
    Case(
        alert="BubbleOverPlan",
        series={
            f'traincope_bubble_ratio{{{HOST},stage="0"}}': "0.26x100",
            f"traincope_bubble_theory_ratio{{{HOST}}}": "0.2x100",
        },
        minute=15,
    ),
)

KNOWN_AGENT = {f'traincope_run_info{{{HOST},instance="h:9400",job="any",world_size="8"}}': "1x4 stale"}
WATCHING = (
    Case(
        alert="AgentDown",
        series={**KNOWN_AGENT, 'up{job="any",instance="h:9400"}': "1x4 0x100"},
        minute=8,
        labels={"run": "r", "host": "h", "instance": "h:9400", "severity": "warning"},
        summary="the agent on h does not answer",
        description="The agent of r on h cannot be scraped at h:9400: it was killed, or h is down.",
    ),
    # The agent ended with its job and removed its target; or another target is down.
    Case(alert="AgentDown", series={**KNOWN_AGENT, 'up{job="any",instance="h:9400"}': "1x4 stale"}, minute=15),
    Case(alert="AgentDown", series={**KNOWN_AGENT, 'up{job="node",instance="h:9100"}': "0x100"}, minute=15),
    Case(
        alert="AgentLate",
        series={f"traincope_agent_lag_seconds{{{HOST}}}": "5x4 65+60x100"},
        minute=7,
        labels={"run": "r", "host": "h", "severity": "warning"},
        summary="numbers from h are old",
        description="The agent on h last read its ranks of r 3m 5s ago; the shown numbers are as old.",
    ),
    Case(alert="AgentLate", series={f"traincope_agent_lag_seconds{{{HOST}}}": "55x100"}, minute=20),
    Case(
        alert="RecorderDropping",
        series={f"traincope_recorder_dropped_total{{{HOST}}}": "0x4 40x100"},
        minute=6,
        labels={"run": "r", "host": "h", "severity": "warning"},
        summary="events of r are dropped on h",
        description="40 events of r were dropped on h recently; the numbers of those steps are too low.",
    ),
    Case(alert="RecorderDropping", series={f"traincope_recorder_dropped_total{{{HOST}}}": "40x100"}, minute=6),
    # 1.2 s of CPU in 60 s of steps.
    Case(
        alert="RecorderCost",
        series={WALL_A: "0+60x100", f"traincope_recorder_time_seconds_total{{{HOST}}}": "0+1.2x100"},
        minute=15,
        labels={"run": "r", "severity": "info"},
        summary="recording costs 2% of r",
        description="The recorder takes 2% of the step time of r.",
    ),
    Case(
        alert="RecorderCost",
        series={WALL_A: "0+60x100", f"traincope_recorder_time_seconds_total{{{HOST}}}": "0+0.3x100"},
        minute=15,
    ),
)

CASES = (*LIVENESS, *JOB, *HARDWARE, *SPEED, *WATCHING)
