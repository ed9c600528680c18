"""vLLM behind the Generator interface, with engines that these modules share."""
