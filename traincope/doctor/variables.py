"""All environment variables of traincope. A test compares them with those that the code names."""

PREFIX = "TRAINCOPE"
KNOWN = frozenset(
    {
        PREFIX,
        *(
            f"{PREFIX}_{name}"
            for name in (
                *("OUT", "RUN_ID", "LEVEL", "BUDGET", "MESSAGES", "MEMORY_PEAKS", "UMASK", "SITE_FILE"),
                *("ON_HANG", "HANG_SECONDS"),
                *(
                    "CORRUPTION_CHECK_STEPS",
                    "TRACE_NON_FINITE",
                    "AGENT",
                    "AGENT_INTERVAL",
                    "AGENT_SHARE",
                ),
                *("WITNESS", "PEERS", "PEER_KEY_FILE", "PEER_LISTEN", "TARGETS", "TERMINATION_LOG", "SIGNAL_STACKS"),
                *("METRICS", "METRICS_CERTIFICATE", "METRICS_KEY", "METRICS_PASSWORD_FILE", "METRICS_PER_RANK"),
                *("OTLP", "TENSORBOARD", "JOB_ID", "WORKFLOW", "ROLE"),
                *(
                    "NATIVE",
                    "NCCL_PLUGIN",
                    "LOCAL",
                    "SHIP",
                    "SHIP_INTERVAL",
                    "SHIP_BANDWIDTH",
                    "SHIP_WAIT",
                    "JOB_BUDGET",
                ),
            )
        ),
    }
)
"""Variables that a person or a launcher sets."""
OWN = frozenset(
    f"{PREFIX}_{name}" for name in ("NOTES", "ABOVE", "PARENT", "FIRST_ATTEMPT", "FAULT", "FAULT_TRUTH", "NAMED")
)
"""Variables that traincope sets for its own processes."""
