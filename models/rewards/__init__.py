"""Rewards that somebody else brings, each given text: models, servers, Python functions, panels."""
