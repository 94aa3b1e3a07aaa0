"""The data plane: OpenAI-compatible requests in, engine and provider answers out."""
