"""Step times of layouts that `traincope plan search --like` predicts, and the engine's real trainings of them."""
