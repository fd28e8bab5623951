export default function BulkJobPage() {
  return null
}
