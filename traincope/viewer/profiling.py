"""The button that requests steps of a running job in detail, as `traincope profile` does, and its answer."""

from pathlib import Path

from dash import html
from dash.development.base_component import Component

from traincope.errors import TraincopeError
from traincope.store.job.requesting import request_window
from traincope.store.job.requests import Cause
from traincope.viewer.components import plain

NUM_STEPS = 20
BUTTON, ANSWER = "profile", "profile-answer"


def profile_button(*, hidden: bool) -> list[Component]:
    """The button and the place of its answer. It belongs on pages that only this machine can reach."""
    return [
        html.Output(id=ANSWER),
        html.Button(f"record {NUM_STEPS} steps in detail", id=BUTTON, n_clicks=0, hidden=hidden),
    ]


def requested(run: Path) -> str:
    """Request the window, and return one sentence about it or about the reason against it."""
    try:
        request = request_window(run, num_steps=NUM_STEPS, cause=Cause.VIEWER)
    except TraincopeError as error:
        return plain(str(error))
    return f"All ranks record steps {request.first_step + 1} to {request.last_step} in detail."
