"""Desired state, deployment generations, memory fit, admission and durable jobs."""
