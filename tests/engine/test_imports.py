"""A process that never imports torch can check a configuration and launch a training."""

import subprocess
import sys

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import traincope.engine.config, traincope.engine.corpus, traincope.engine.launch, traincope.engine.config.load
import traincope.engine.checkpoint.places.directory
"""


def test_config_corpus_launch_and_checking_checkpoints_need_no_torch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True)
