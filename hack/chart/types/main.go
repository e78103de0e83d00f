// Command types reads the objects on standard input into the Go types of the Prometheus operator and cert-manager. An
// unknown or misplaced field is an error. Objects of other groups are left to the schemas of Kubernetes.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	certificates "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

var kinds = map[string]func() any{
	"monitoring.coreos.com/v1/PodMonitor":     func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule": func() any { return new(monitoring.PrometheusRule) },
	"cert-manager.io/v1/Issuer":               func() any { return new(certificates.Issuer) },
	"cert-manager.io/v1/Certificate":          func() any { return new(certificates.Certificate) },
}

func check(documents io.Reader) (int, error) {
	reader, count := yaml.NewYAMLReader(bufio.NewReader(documents)), 0
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		var object metav1.PartialObjectMetadata
		if err := strict.Unmarshal(document, &object); err != nil {
			return count, err
		}
		kind := kinds[object.APIVersion+"/"+object.Kind]
		if kind == nil {
			continue
		}
		if err := strict.UnmarshalStrict(document, kind()); err != nil {
			return count, fmt.Errorf("%s %s: %w", object.Kind, object.Name, err)
		}
		count++
	}
}

func main() {
	count, err := check(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(count)
}
