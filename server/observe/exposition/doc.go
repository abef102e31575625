// Package exposition changes the form of /metrics, not the measurements. Native adds native histograms to classic ones;
// EPP repeats the metrics that the endpoint picker of Gateway API's inference extension has too under the picker's names, so that
// its dashboards, autoscalers and cross-cluster routers can read kvpilot. Both work when metrics are read: a request pays
// for neither name.
package exposition
