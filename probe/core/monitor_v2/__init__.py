"""msprobe's Monitor V2: its configuration file, and its four calls over ``TrainerMon``."""
