"""Score of verdicts about jobs of several hosts, made of namespaces, with drawn faults, clocks and links."""
