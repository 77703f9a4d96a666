"""The work of every command as a plain function: a typed request in, a typed result out, nothing printed.

The command line parses, calls one of these and prints what comes back; `import thresher` offers the same functions.
"""
