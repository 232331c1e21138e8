"""The contract between core and a framework, and what core computes without one."""
