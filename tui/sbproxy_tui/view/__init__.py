"""Pure: events reduce to a state, and selectors turn the state into what widgets show."""
