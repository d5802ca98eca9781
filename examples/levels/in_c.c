// C: one function, no library but expf and logf.

#include <math.h>

enum { INPUTS = 784, HIDDEN = 128, CLASSES = 10, MOST = 1024 };

static float h[MOST][HIDDEN], dz[MOST][CLASSES], da[MOST][HIDDEN];

static float forward(const float *w1, const float *b1, const float *w2, const float *b2,
                     const float *x, const int *labels, int batch) {
  float loss = 0;
  for (int i = 0; i < batch; i++) {
    float z[CLASSES], largest = -INFINITY, total = 0;
    for (int j = 0; j < HIDDEN; j++) {
      float sum = b1[j];
      for (int k = 0; k < INPUTS; k++) sum += x[i * INPUTS + k] * w1[j * INPUTS + k];
      h[i][j] = sum > 0 ? sum : 0;
    }
    for (int c = 0; c < CLASSES; c++) {
      z[c] = b2[c];
      for (int j = 0; j < HIDDEN; j++) z[c] += h[i][j] * w2[c * HIDDEN + j];
      if (z[c] > largest) largest = z[c];
    }
    for (int c = 0; c < CLASSES; c++) total += expf(z[c] - largest);
    for (int c = 0; c < CLASSES; c++)
      dz[i][c] = (expf(z[c] - largest) / total - (c == labels[i])) / batch;
    loss += (logf(total) - (z[labels[i]] - largest)) / batch;
  }
  return loss;
}

static void backward(float *w1, float *b1, float *w2, float *b2, const float *x, int batch,
                     float rate) {
  for (int i = 0; i < batch; i++)
    for (int j = 0; j < HIDDEN; j++) {
      da[i][j] = 0;
      for (int c = 0; c < CLASSES; c++) da[i][j] += dz[i][c] * w2[c * HIDDEN + j];
      if (h[i][j] <= 0) da[i][j] = 0;
    }
  for (int i = 0; i < batch; i++) {
    for (int c = 0; c < CLASSES; c++) {
      b2[c] -= rate * dz[i][c];
      for (int j = 0; j < HIDDEN; j++) w2[c * HIDDEN + j] -= rate * dz[i][c] * h[i][j];
    }
    for (int j = 0; j < HIDDEN; j++) {
      b1[j] -= rate * da[i][j];
      for (int k = 0; k < INPUTS; k++)
        w1[j * INPUTS + k] -= rate * da[i][j] * x[i * INPUTS + k];
    }
  }
}

int train(float *w1, float *b1, float *w2, float *b2, const float *x, const int *labels,
          float *losses, int steps, int batch, float rate) {
  if (batch > MOST) return 1;
  for (int step = 0; step < steps; step++, x += batch * INPUTS, labels += batch) {
    losses[step] = forward(w1, b1, w2, b2, x, labels, batch);
    backward(w1, b1, w2, b2, x, batch, rate);
  }
  return 0;
}
