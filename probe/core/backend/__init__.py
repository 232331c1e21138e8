"""Contract between core and a framework, and computations of core without one."""
