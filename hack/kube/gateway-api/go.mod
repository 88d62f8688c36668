module steelyard.test/hack/kube/gateway-api

go 1.26.0

// The kinds that the API server of the tests is taught. A module of its own, so that it moves no version of what Kubernetes is built from.
require sigs.k8s.io/gateway-api v1.6.3
