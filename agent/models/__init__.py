"""Model folders: what a worker loads, and the programs that make one.

Reading a folder (`agent.models.folder`, `agent.models.registry`) needs neither onnx nor gguf nor
onnxruntime. Making one (`python -P -m agent.models`) needs the extra `import`.
"""
