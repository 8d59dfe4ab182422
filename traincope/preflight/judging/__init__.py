"""Pure functions from measurements to findings: slow ranks, slow links, the pipeline, the judgement of each host."""
