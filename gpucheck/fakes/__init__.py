"""Stand-ins for the driver's libraries and the machines that they play."""
