"""What sb.yml may say: load, interpolate, check, print, JSON Schema."""
