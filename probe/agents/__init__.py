"""Interface for coding agents: tools of a server of the Model Context Protocol, which read and change nothing."""
