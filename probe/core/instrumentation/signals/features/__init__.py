"""The interpretable features: numbers of attention, of linear layers and of routers that are no moments."""
