"""Which kernel or plan runs: candidates, a cost model or a measured table, and the choice."""
