"""What the recorder sees of real trainings, compared with known sizes and delays, and that it changes none of them."""
