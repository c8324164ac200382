"""The streaming proxy in front of engine pools."""
