"""The interpretable features: numbers of attention, linear layers and routers that are not moments."""
