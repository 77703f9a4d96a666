"""A model as one ONNX graph of standard operators that really drops tokens, and an executor that runs it.

The graph is built node by node from the engine's weights and the plan: onnx is imported only where it is needed.
"""
