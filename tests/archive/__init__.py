"""The archive job and its readers, without a JVM."""
