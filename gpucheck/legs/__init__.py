"""What several probes do alike: the legs that they share, and what a reply is worth."""
