// CUDA C++, a thread for each output: no shared memory, each thread reads rows and columns itself.

// y = x w^T + b, of n rows; relu where it is asked for.
extern "C" __global__ void linear(const float* x, const float* w, const float* b, float* y, int n,
                                  int inputs, int outputs, bool relu) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * outputs) return;
  int row = i / outputs, column = i % outputs;
  float sum = b[column];
  for (int k = 0; k < inputs; k++) sum += x[row * inputs + k] * w[column * inputs + k];
  y[i] = relu && sum < 0 ? 0 : sum;
}

// z becomes its gradient: softmax(z) - 1 at the label, over n. The loss is a row's.
extern "C" __global__ void cross_entropy(float* z, const int* labels, float* losses, int n,
                                         int classes) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  z += row * classes;
  float largest = z[0], total = 0;
  for (int c = 1; c < classes; c++) largest = fmaxf(largest, z[c]);
  for (int c = 0; c < classes; c++) total += expf(z[c] - largest);
  losses[row] = logf(total) - (z[labels[row]] - largest);
  for (int c = 0; c < classes; c++)
    z[c] = (expf(z[c] - largest) / total - (c == labels[row])) / n;
}

// da = (dz w) where h > 0.
extern "C" __global__ void input_gradient(const float* dz, const float* w, const float* h,
                                          float* da, int n, int inputs, int outputs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * inputs) return;
  int row = i / inputs, column = i % inputs;
  float sum = 0;
  for (int c = 0; c < outputs; c++) sum += dz[row * outputs + c] * w[c * inputs + column];
  da[i] = h[i] > 0 ? sum : 0;
}

// w -= rate dz^T x, and b -= rate (the sum of dz's rows): threads past w have an element of b.
extern "C" __global__ void update(const float* dz, const float* x, float* w, float* b, int n,
                                  int inputs, int outputs, float rate) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (inputs + 1) * outputs) return;
  bool of_bias = i >= inputs * outputs;
  int output = of_bias ? i - inputs * outputs : i / inputs;
  float sum = 0;
  for (int row = 0; row < n; row++)
    sum += dz[row * outputs + output] * (of_bias ? 1.0f : x[row * inputs + i % inputs]);
  if (of_bias) b[output] -= rate * sum;
  else w[i] -= rate * sum;
}
