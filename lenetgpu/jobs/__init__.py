"""Many files as one job: what is read, in which shards, by whom, and what is done already."""
