"""The signals: what turns evidence into a decision."""
