"""What an agent notices by itself: slow steps, growing memory, silent corruption, a job that stands still.

`remembered` keeps what one window is too short to judge by, `state_watch` judges the checks of the ranks' state,
`watchdog` and `looking` look at a job that stands still, `deaths` waits for ranks that end, `anomaly_windows`
requests detail after a fault. The judgement itself is in `traincope.analysis`.
"""
