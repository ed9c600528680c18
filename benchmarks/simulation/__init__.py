"""Simulated engines in virtual time, for the scheduler's benchmarks and tests. The scheduler is the real one."""
