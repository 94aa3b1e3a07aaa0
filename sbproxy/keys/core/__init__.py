"""What decides about keys, pure: records, tokens, policy, changes."""
