// Package exposition changes what /metrics shows, not what is measured. Native adds native histograms to classic ones;
// EPP repeats what the endpoint picker of Gateway API's inference extension measures too under the picker's names, so that
// its dashboards, autoscalers and cross-cluster routers can read kvpilot. Both work when metrics are read: a request pays
// for neither name.
package exposition
