"""What is kept between runs: a folder that only its owner writes, entries behind their digests."""
