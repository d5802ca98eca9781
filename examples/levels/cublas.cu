// What is left beside the products, a thread for each element or row.

// h = relu(h + b), of n rows.
extern "C" __global__ void bias_relu(float* h, const float* b, int n, int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n * columns) h[i] = fmaxf(h[i] + b[i % columns], 0.0f);
}

// z becomes the gradient at z + b: softmax - 1 at the label, over n. The losses are a batch's.
extern "C" __global__ void cross_entropy(float* z, const float* b, const int* labels,
                                         float* losses, int batch, int n, int classes) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  z += row * classes;
  int label = labels[batch * n + row];
  float largest = z[0] + b[0], total = 0;
  for (int c = 0; c < classes; c++) largest = fmaxf(largest, z[c] += b[c]);
  for (int c = 0; c < classes; c++) total += expf(z[c] - largest);
  losses[batch * n + row] = logf(total) - (z[label] - largest);
  for (int c = 0; c < classes; c++) z[c] = (expf(z[c] - largest) / total - (c == label)) / n;
}

// da = da where h > 0.
extern "C" __global__ void mask(float* da, const float* h, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && !(h[i] > 0)) da[i] = 0;
}
