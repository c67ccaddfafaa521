"""A read-only web view of a node or a fleet.

Pages, style and scripts ship in the package and load nothing from elsewhere. They
speak to the agent over HTTP only, so the dashboard can be deleted without touching
anything else.
"""
