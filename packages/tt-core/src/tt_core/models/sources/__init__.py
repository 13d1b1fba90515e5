"""One module per kind of model file: `onnx_model`, `exported_program` (PyTorch), `tvm_script`."""
