"""Records of real trainings, compared with known sizes and delays; the recorder changes none of the trainings."""
