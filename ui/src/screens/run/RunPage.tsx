export default function RunPage() {
  return null
}
